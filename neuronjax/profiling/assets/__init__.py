"""The report page: template, styles and code, which need no network."""
