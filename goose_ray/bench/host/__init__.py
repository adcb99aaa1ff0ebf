"""What a step costs beside the model: drafting, the engine's own work, the way to the ranks."""
