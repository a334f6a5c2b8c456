-- Statements that belong to no single verb.

-- name: begin
-- Keeps C10.
-- A commit must survive what it acknowledged; a wait and an idle transaction must end by themselves.
-- The settings go with BEGIN in one message, so they cost no round trip of their own.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL synchronous_commit = 'on';
SET LOCAL lock_timeout = '{lock_timeout}';
SET LOCAL idle_in_transaction_session_timeout = '{idle_timeout}';
