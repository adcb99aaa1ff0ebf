"""What sharing is worth and costs: learning together, the aggregator under load, the router."""
