"""Learning costs from measurements, with XGBoost."""
