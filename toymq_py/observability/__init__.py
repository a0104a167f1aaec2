"""What others look at the broker with: adapters behind the extra ``[observability]``. They never change what it does."""
