-- Statements that belong to no single verb.

-- name: settings
-- Keeps C10.
-- A commit must survive what it acknowledged; a wait and an idle transaction must end by themselves.
SELECT set_config('synchronous_commit', 'on', true),
       set_config('lock_timeout', :lock_timeout, true),
       set_config('idle_in_transaction_session_timeout', :idle_timeout, true);
