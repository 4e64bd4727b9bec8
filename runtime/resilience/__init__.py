"""What protects callers from what fails, repeats or floods: breakers, deduplication, backpressure, pipelines."""
