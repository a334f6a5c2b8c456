"""semel's pages in Airflow: the ledger's and the source's state, as HTML from this server alone.

`app` has the routes, each with Airflow's authorization; `content` reads the ledger for them;
`queries` bounds how long a page waits for the source; `text` formats values.
"""
