"""The verbs in a row, without Airflow: a batch, a replay, the admission of dead letters."""
