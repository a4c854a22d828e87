"""The built-in drafters; importing this package registers them."""
