"""The built-in verifiers; importing this package registers them."""
