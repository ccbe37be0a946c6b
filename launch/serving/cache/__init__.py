"""Blocks of the paged cache: `prefixes` knows what lies in them, `blocks` who holds them."""
