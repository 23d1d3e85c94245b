"""pombu."""
