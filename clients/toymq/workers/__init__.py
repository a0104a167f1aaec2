"""Workers call a function for each message of a topic; an ``App`` collects them, and the command ``toymq worker`` runs them."""
