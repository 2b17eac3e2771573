#!/bin/sh
# Creates a database on the first start, then runs the server. Supports the features of the public image that charts
# use: POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB (each also with _FILE), POSTGRES_HOST_AUTH_METHOD, PGDATA, and
# scripts in /docker-entrypoint-initdb.d.
set -eu
umask 077

# value NAME DEFAULT: the variable, or the content of the file named by NAME_FILE, or the default.
value() {
    eval "direct=\${$1:-} file=\${$1_FILE:-}"
    if [ -n "$direct" ] && [ -n "$file" ]; then
        echo "error: $1 and $1_FILE are both set: set only one" >&2
        exit 1
    elif [ -n "$file" ]; then
        cat "$file"
    else
        printf '%s' "${direct:-$2}"
    fi
}

case "${1:-postgres}" in
    -*) set -- postgres "$@" ;;
    postgres) ;;
    *) exec "$@" ;;
esac
if [ "$(id -u)" = 0 ]; then
    echo "error: this image does not run as root: do not set runAsUser, or set it to 999" >&2
    exit 1
fi

export PGDATA="${PGDATA:-/var/lib/postgresql/data}"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    user=$(value POSTGRES_USER postgres)
    database=$(value POSTGRES_DB "$user")
    password=$(value POSTGRES_PASSWORD "")
    method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
    if [ -z "$password" ] && [ "$method" != trust ]; then
        echo "error: set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE: the database would have no password" >&2
        exit 1
    fi
    mkdir -p "$PGDATA"
    chmod 700 "$PGDATA" 2>/dev/null || true
    if [ -n "$password" ]; then
        printf '%s\n' "$password" |
            initdb --username="$user" --pwfile=/dev/stdin --encoding=UTF8 --locale=C ${POSTGRES_INITDB_ARGS:-}
    else
        initdb --username="$user" --encoding=UTF8 --locale=C ${POSTGRES_INITDB_ARGS:-}
    fi
    printf "\nlisten_addresses = '*'\n" >> "$PGDATA/postgresql.conf"
    printf '\nhost all all all %s\n' "$method" >> "$PGDATA/pg_hba.conf"

    # A server that only this script can reach, to initialize the new database.
    export PGHOST=/var/run/postgresql PGUSER="$user" PGPASSWORD="$password"
    pg_ctl -D "$PGDATA" -w -o "-c listen_addresses= -c unix_socket_directories=$PGHOST" start
    if [ "$database" != postgres ]; then
        psql -v ON_ERROR_STOP=1 --no-psqlrc -d postgres -v name="$database" <<'SQL'
CREATE DATABASE :"name";
SQL
    fi
    export PGDATABASE="$database"
    for script in /docker-entrypoint-initdb.d/*; do
        case "$script" in
            *.sql) psql -v ON_ERROR_STOP=1 --no-psqlrc -f "$script" ;;
            *.sh) sh "$script" ;;
        esac
    done
    pg_ctl -D "$PGDATA" -m fast -w stop
    unset PGHOST PGUSER PGPASSWORD PGDATABASE
fi
exec "$@"
