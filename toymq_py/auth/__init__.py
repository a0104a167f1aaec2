"""Tokens and their rights, limits of each token and address, the audit trail. Contract: clients.md; docs/security.md."""
