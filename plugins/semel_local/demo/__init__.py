"""The demo: a week of real flights, with the known truth beside them."""
