"""``toymq-bench``: put load on a real broker, measure cost and limits, compare with other brokers. Contract: performance.md."""
