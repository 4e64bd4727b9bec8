"""Model providers: what answers a request."""
