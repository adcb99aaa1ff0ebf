"""All that is to be known of a new device in one run: exactness, forwards, speed."""
