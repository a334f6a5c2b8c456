"""Run the verbs in sequence, without Airflow: for a batch, a replay, an admission of dead letters.
"""
