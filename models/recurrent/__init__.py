"""Recurrent networks over time series: LSTM and GRU."""
