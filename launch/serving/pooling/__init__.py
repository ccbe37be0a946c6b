"""Serving whole texts: `buckets` chooses static shapes, `site` puts a model behind the API."""
