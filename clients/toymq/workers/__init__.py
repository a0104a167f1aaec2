"""Workers: functions that are called for each message of a topic; ``App`` collects them, ``toymq worker`` runs them."""
