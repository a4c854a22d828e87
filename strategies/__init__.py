"""The built-in scorers and tree builders; importing this package registers them."""
