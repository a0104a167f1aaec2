"""Workers call a function for each message of a topic; ``App`` collects them, ``toymq worker`` runs them."""
