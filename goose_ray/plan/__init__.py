"""What a deployment needs and gives on a GPU that is not at hand: arithmetic from a model's config and a data sheet."""
