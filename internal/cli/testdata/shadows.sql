-- Shadows: functions, operators, views and domains with the names of those in pg_catalog, as a role with CREATE on a
-- schema can make them. Each writes a line to the server's log when it is run, whatever becomes of the transaction.
CREATE SCHEMA trap;
GRANT USAGE ON SCHEMA trap TO PUBLIC;

CREATE FUNCTION trap.sprung(what pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$
BEGIN
	RAISE LOG 'walpost shadow: %', what;
	RETURN true;
END $$;

-- concrete is the type that a polymorphic argument has when its element is one of that type.
CREATE FUNCTION trap.concrete(argument oid, element pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql AS $$
	SELECT CASE
		WHEN argument IN ('anyarray'::regtype, 'anycompatiblearray'::regtype) THEN element || '[]'
		WHEN argument IN ('anyelement'::regtype, 'anynonarray'::regtype, 'anycompatible'::regtype, '"any"'::regtype) THEN element
		ELSE format_type(argument, NULL) END
$$;

-- functions shadows those of pg_catalog that have one of the names; what is polymorphic there also with the types that it
-- is called with, which is the better match.
CREATE FUNCTION trap.functions(target pg_catalog.text, names pg_catalog.text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	f record;
	signature pg_catalog.text;
	result pg_catalog.text;
	made bigint := 0;
BEGIN
	FOR f IN
		SELECT DISTINCT p.proname, e.element, p.proretset, p.prorettype, p.prokind,
			CASE WHEN p.provariadic = 0 THEN p.proargtypes::oid[] ELSE p.proargtypes::oid[] END AS arguments
		FROM pg_proc p, unnest('{text,name,smallint,integer,bigint,oid,boolean,timestamptz,interval,jsonb,json,xid,xid8,pg_lsn,numeric,"\"char\""}'::pg_catalog.text[]) e(element)
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY (names)
	LOOP
		SELECT coalesce(string_agg(trap.concrete(a, f.element), ', ' ORDER BY n), '') INTO signature FROM unnest(f.arguments) WITH ORDINALITY u(a, n);
		result := CASE WHEN f.prorettype IN ('record'::regtype) THEN 'text' ELSE trap.concrete(f.prorettype, f.element) END;
		BEGIN
			EXECUTE format('CREATE FUNCTION %I.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS %L', target, f.proname, signature,
				CASE WHEN f.proretset THEN 'SETOF' ELSE '' END, result,
				format('BEGIN PERFORM trap.sprung(%L); %s; END', format('%s.%s(%s)', target, f.proname, signature),
					CASE WHEN f.proretset OR result = 'void' THEN 'RETURN' ELSE 'RETURN NULL' END));
			made := made + 1;
		EXCEPTION WHEN duplicate_function OR invalid_function_definition OR undefined_object OR feature_not_supported OR datatype_mismatch OR syntax_error THEN
			NULL; -- there already, or of a type that no SQL can name
		END;
	END LOOP;
	RETURN made;
END $$;

CREATE FUNCTION trap.operators(target pg_catalog.text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	o record;
	l pg_catalog.text;
	r pg_catalog.text;
	made bigint := 0;
BEGIN
	FOR o IN
		SELECT DISTINCT p.oprname, p.oprleft, p.oprright, p.oprresult, e.element, dense_rank() OVER (ORDER BY p.oid) AS n
		FROM pg_operator p, unnest('{text,smallint,integer,bigint,oid,name,"\"char\""}'::pg_catalog.text[]) e(element)
		WHERE p.oprnamespace = 'pg_catalog'::regnamespace AND p.oprresult <> 0
	LOOP
		l := CASE WHEN o.oprleft = 0 THEN NULL ELSE trap.concrete(o.oprleft, o.element) END;
		r := trap.concrete(o.oprright, o.element);
		BEGIN
			EXECUTE format('CREATE FUNCTION %I.operator_%s_%s(%s) RETURNS %s LANGUAGE plpgsql AS %L', target, o.n, made, concat_ws(', ', l, r),
				trap.concrete(o.oprresult, o.element),
				format('BEGIN PERFORM trap.sprung(%L); RETURN NULL; END', format('%s %s %s in %s', l, o.oprname, r, target)));
			EXECUTE format('CREATE OPERATOR %I.%s (%s RIGHTARG = %s, FUNCTION = %I.operator_%s_%s)', target, o.oprname,
				CASE WHEN l IS NULL THEN '' ELSE 'LEFTARG = ' || l || ',' END, r, target, o.n, made);
			made := made + 1;
		EXCEPTION WHEN duplicate_function OR invalid_function_definition OR undefined_object OR feature_not_supported OR datatype_mismatch OR syntax_error OR ambiguous_function THEN
			NULL;
		END;
	END LOOP;
	RETURN made;
END $$;

CREATE FUNCTION trap.relations(target pg_catalog.text, names pg_catalog.text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	c record;
	made bigint := 0;
BEGIN
	FOR c IN SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v') AND relname = ANY (names) LOOP
		BEGIN
			EXECUTE format('CREATE VIEW %I.%I AS SELECT * FROM pg_catalog.%I WHERE trap.sprung(%L)', target, c.relname, c.relname, target || '.' || c.relname);
			made := made + 1;
		EXCEPTION WHEN invalid_table_definition THEN
			NULL; -- a column of a pseudo-type
		END;
	END LOOP;
	RETURN made;
END $$;

CREATE FUNCTION trap.types(target pg_catalog.text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	name pg_catalog.text;
	made bigint := 0;
BEGIN
	FOREACH name IN ARRAY '{text,jsonb,json,oid,xid,xid8,pg_lsn,timestamptz,bytea,int2,int4,int8,bool,regclass,float8,uuid}'::pg_catalog.text[] LOOP
		EXECUTE format('CREATE DOMAIN %I.%I AS pg_catalog.%I CHECK (trap.sprung(%L))', target, name, name, 'type ' || target || '.' || name);
		made := made + 1;
	END LOOP;
	RETURN made;
END $$;
