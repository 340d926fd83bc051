-- The four roles of walpost, each with what its work needs and nothing else (docs/security.md).
--
--   walpost_migrate    owns the tables, the schema walpost and the publication: walpost migrate
--   walpost_relay      reads the slot, records, marks and cleans: walpost relay, walpost doctor
--   walpost_api        completes lessons: walpost api
--   walpost_operator   sees everything, and changes what people may change: walpost status, owed, replay, subscribers
--
-- Run it as a superuser in walpost's database, before the first walpost migrate and after each one: before, the roles
-- must be there, after, the tables. It may be repeated. Passwords are yours to set:
--
--   psql -f deploy/sql/roles.sql -c "ALTER ROLE walpost_relay PASSWORD '…'" …
--
-- Tables of your own in place of public.outbox: the part that begins with "-- public.outbox" is what they need.

SET search_path = '';

DO $$
DECLARE
    name text;
    signature text;
BEGIN
    FOREACH name IN ARRAY ARRAY['walpost_migrate', 'walpost_relay', 'walpost_api', 'walpost_operator'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', name);
        END IF;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), name);
    END LOOP;
    ALTER ROLE walpost_relay REPLICATION;
    EXECUTE format('GRANT CREATE ON DATABASE %I TO walpost_migrate', current_database());

    -- A role that can create something in public can put a function or table of their own in the way of a careless query.
    REVOKE CREATE ON SCHEMA public FROM PUBLIC;
    GRANT USAGE, CREATE ON SCHEMA public TO walpost_migrate;
    GRANT USAGE ON SCHEMA public TO walpost_relay, walpost_api, walpost_operator;

    -- A logical message is an event of a source of messages, and any role may write one. Where such a source is used,
    -- grant it to the role that writes them.
    FOR signature IN
        SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
            AND p.proname = 'pg_logical_emit_message'
    LOOP
        EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || signature || ' FROM PUBLIC';
    END LOOP;
END $$;

DO $$
DECLARE
    name text;
BEGIN
    IF to_regnamespace('walpost') IS NULL THEN
        RAISE NOTICE 'the roles are made; run this again after walpost migrate';
        RETURN;
    END IF;

    -- Schema walpost. Which version the tables have is for migrate alone to write.
    GRANT USAGE ON SCHEMA walpost TO walpost_relay, walpost_api, walpost_operator;
    FOR name IN
        SELECT c.oid::regclass::text FROM pg_class c
        WHERE c.relnamespace = 'walpost'::regnamespace
            AND c.relkind = ANY ('{r,p}'::"char"[])
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM walpost_relay, walpost_api, walpost_operator', name);
        CONTINUE WHEN name = 'walpost.migrating';
        EXECUTE format('GRANT SELECT ON %s TO walpost_relay, walpost_operator', name);
        IF right(name, 15) = '_schema_version' THEN
            EXECUTE format('GRANT SELECT ON %s TO walpost_api', name);
        ELSE
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON %s TO walpost_relay', name);
        END IF;
    END LOOP;
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA walpost TO walpost_relay, walpost_operator;

    -- People change what is owed, pause and forget, and ask for replays; each change is a row of the audit. Leadership,
    -- slot and fence are the relay's alone.
    GRANT INSERT, UPDATE, DELETE ON walpost.owed, walpost.subscribers, walpost.replays TO walpost_operator;
    GRANT INSERT, UPDATE ON walpost.audit, walpost.turns TO walpost_operator;
    GRANT DELETE ON walpost.inbox TO walpost_operator;

    IF to_regclass('public.outbox') IS NULL THEN
        RETURN; -- sources of your own
    END IF;

    -- public.outbox
    GRANT SELECT, DELETE, UPDATE (published_at, attempts) ON public.outbox TO walpost_relay;
    GRANT SELECT, UPDATE (published_at, attempts) ON public.outbox TO walpost_operator;
    GRANT INSERT ON public.outbox TO walpost_api;
    GRANT USAGE ON SEQUENCE public.outbox_id_seq TO walpost_api;
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'walpost') THEN
        CREATE PUBLICATION walpost FOR TABLE public.outbox WITH (publish = 'insert', publish_via_partition_root = true);
    END IF;
    ALTER PUBLICATION walpost OWNER TO walpost_migrate;

    -- The learning platform: the API completes lessons, the relay's subscribers have their effects in the other tables.
    GRANT SELECT, INSERT, UPDATE ON public.lesson_progress, public.learners TO walpost_api;
    GRANT SELECT ON public.user_achievements, public.notifications, public.recommendations TO walpost_api;
    GRANT SELECT ON public.lesson_progress TO walpost_relay;
    GRANT SELECT, INSERT, UPDATE ON public.user_achievements, public.notifications, public.recommendations TO walpost_relay;
    GRANT SELECT, INSERT ON public.analytics_events TO walpost_relay;
END $$;

RESET search_path;
