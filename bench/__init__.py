"""What a durable step costs: Clew, the physical floor and a peer under one workload. `make bench` runs it."""
