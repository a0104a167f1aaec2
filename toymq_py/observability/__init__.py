"""Exporters: metrics for Prometheus; spans for OpenTelemetry, with the extra ``[observability]``. They only read the broker."""
