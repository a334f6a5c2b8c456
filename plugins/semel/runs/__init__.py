"""Run the verbs in sequence, without Airflow: for a batch, a replay, or an admission."""
