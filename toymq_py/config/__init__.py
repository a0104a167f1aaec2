"""Options of the broker, settings of a topic, and definitions of topics, consumers and webhooks."""
