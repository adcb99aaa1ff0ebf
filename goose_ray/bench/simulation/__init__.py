"""A thousand replicas under production traffic, as arrays, with the real aggregator over them."""
