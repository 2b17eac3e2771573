-- Checks that work even without the schema.
select current_setting('server_version') as server_version,
       not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off' as writable,
       exists (
           select from pg_class
           where relname = 'schema_version' and relnamespace = to_regnamespace('leadergroup')
       ) as has_schema,
       -- Those that replicate the schema, or will once it is there.
       array(
           select distinct p.pubname::text
           from pg_publication as p
           where p.puballtables or exists (
               select from pg_publication_tables as t where t.pubname = p.pubname and t.schemaname = 'leadergroup'
           )
           order by 1
       ) as publications,
       array(
           select p.privilege || ' on ' || c.relname
           from (values ('schema_version', 'SELECT'), ('meta', 'SELECT'), ('meta', 'UPDATE'),
                        ('session', 'SELECT'), ('session', 'INSERT'), ('session', 'UPDATE'), ('session', 'DELETE'),
                        ('lock', 'SELECT'), ('lock', 'INSERT'), ('lock', 'UPDATE'), ('lock', 'DELETE'),
                        ('term', 'SELECT'), ('term', 'INSERT'), ('term', 'DELETE'), ('terms', 'SELECT'),
                        ('waiter', 'SELECT'), ('waiter', 'INSERT'), ('waiter', 'UPDATE'), ('waiter', 'DELETE'),
                        ('published', 'SELECT'), ('published', 'INSERT'), ('published', 'UPDATE'),
                        ('published', 'DELETE')
                ) as p (relation, privilege)
           join pg_class as c on c.relname = p.relation and c.relnamespace = to_regnamespace('leadergroup')
           where not has_table_privilege(c.oid, p.privilege)
       )
       || array(
           select 'EXECUTE on function ' || f.oid::regprocedure
           from pg_proc as f
           where f.pronamespace = to_regnamespace('leadergroup') and not has_function_privilege(f.oid, 'EXECUTE')
       )
       || case
              when to_regnamespace('leadergroup') is null
                   and not has_database_privilege(current_database(), 'CREATE')
                   then array['CREATE on database ' || current_database()]
              when not has_schema_privilege(to_regnamespace('leadergroup'), 'USAGE')
                   then array['USAGE on schema leadergroup']
              else array[]::text[]
          end as missing
