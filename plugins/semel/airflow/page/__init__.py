"""semel's pages in Airflow: the ledger's and the source's state, as HTML from this server alone.

`app` has the routes, each with Airflow's authorization; `shown` reads the ledger for them; `looks`
bounds how long a page waits for the source; `text` formats values.
"""
