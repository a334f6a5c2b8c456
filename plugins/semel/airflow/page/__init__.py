"""semel's pages in Airflow: what the ledger and the source tell, as HTML from this server alone.

`app` has the routes, each behind Airflow's own authorization; `shown` reads what they show; `looks`
bounds how long a page waits for the source; `text` puts values into words.
"""
