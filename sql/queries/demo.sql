-- The demo's query of the table flights_by_day, as it is printed.

-- name: by_day
SELECT day, sum(flights) AS flights, sum(departed) AS departed,
       sum(dep_delay_minutes) AS dep_delay_minutes, count(DISTINCT _semel_batch) AS batches
FROM flights_by_day
GROUP BY day
ORDER BY day;

-- name: by_airport
SELECT airport, sum(flights) AS flights, sum(departed) AS departed,
       sum(dep_delay_minutes) AS dep_delay_minutes
FROM delays_by_airport
GROUP BY airport
ORDER BY airport;
