"""What agents remember and know: episodes, facts, working memory and graphs, each a stream on the log."""
