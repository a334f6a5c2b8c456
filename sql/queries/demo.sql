-- The demo's queries. The first is printed, too.

-- name: by_day
SELECT CAST(window_start AT TIME ZONE 'America/New_York' AS date) AS day, flights, departed,
       dep_delay_minutes, final
FROM flights_by_day
WHERE carrier IS NULL
ORDER BY day;

-- name: by_carrier
SELECT CAST(window_start AT TIME ZONE 'America/New_York' AS date) AS day, carrier, flights, departed,
       dep_delay_minutes
FROM flights_by_day
WHERE carrier IS NOT NULL
ORDER BY day, carrier;

-- name: by_airport
SELECT airport, sum(flights) AS flights, sum(departed) AS departed,
       sum(dep_delay_minutes) AS dep_delay_minutes
FROM delays_by_airport
GROUP BY airport
ORDER BY airport;

-- name: secret
CREATE SECRET (
    TYPE s3, KEY_ID $user, SECRET $password, ENDPOINT $server, REGION $region, URL_STYLE 'path',
    USE_SSL false
);

-- name: lake
SELECT * FROM delta_scan($table);
