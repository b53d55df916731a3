//! The six programs: how each is configured and built, and how to check that it works.
//!
//! The lines are for bash, run in the source tree with `-euo pipefail`. Their environment has `JOBS`,
//! `CFLAGS` (the optimisation level), `RUN` (a folder on the same place for output of the built program),
//! `PORT` (a loopback port that was free a moment ago) and `LC_ALL=C`. Configurations are small: they build
//! the main program with few other packages installed.
//!
//! A built program is not only started. It must give an answer that it could not give by chance.

/// One program.
#[derive(Debug)]
pub struct Recipe {
    /// Its name, which is also its repository's: `redis.git`.
    pub name: &'static str,
    /// The commands that configure it; empty if none are needed.
    pub configure: &'static str,
    /// The commands that build it.
    pub build: &'static str,
    /// Runs the built program and checks its answers.
    pub check: &'static str,
}

/// Precedes every recipe's check: functions that wait for a server and fetch a page.
pub const PRELUDE: &str = r#"
await() {
    for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
    echo "no answer to: $*" >&2
    "$@"
}
get() {
    exec 3<>"/dev/tcp/127.0.0.1/$PORT" || return 1
    printf 'GET /%s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$1" >&3
    cat <&3
    exec 3>&-
}
is() { [ "$1" = "$2" ] || { echo "wanted '$2', got '$1'" >&2; exit 1; }; }
stop_at_exit() { trap "kill $1 2>/dev/null; wait $1 2>/dev/null || true" EXIT; }
"#;

/// All six; the small ones first.
pub const RECIPES: &[Recipe] = &[
    Recipe {
        name: "redis",
        configure: "",
        build: r#"make -j"$JOBS" MALLOC=libc USE_SYSTEMD=no OPTIMIZATION="$CFLAGS""#,
        check: r#"
            ./src/redis-server --version | grep 'Redis server'
            ./src/redis-server --port 0 --unixsocket "$RUN/socket" --dir "$RUN" --appendonly yes &
            stop_at_exit $!
            ask() { ./src/redis-cli -s "$RUN/socket" "$@"; }
            await ask ping
            is "$(ask set key value)" OK
            is "$(ask get key)" value
            is "$(ask save)" OK
            [ -s "$RUN/dump.rdb" ]
        "#,
    },
    Recipe {
        name: "nginx",
        configure: r#"
            program=./configure
            [ -x $program ] || program=auto/configure
            $program --without-http_rewrite_module --without-http_gzip_module --with-cc-opt="$CFLAGS"
        "#,
        build: r#"make -j"$JOBS""#,
        check: r#"
            mkdir -p "$RUN/logs" "$RUN/html"
            echo "served by nginx" >"$RUN/html/page"
            cat >"$RUN/nginx.conf" <<END
            daemon off;
            user root;
            events { }
            http { access_log off; server { listen 127.0.0.1:$PORT; root $RUN/html; } }
END
            ./objs/nginx -p "$RUN" -c "$RUN/nginx.conf" -t
            ./objs/nginx -p "$RUN" -c "$RUN/nginx.conf" &
            stop_at_exit $!
            await get page
            is "$(get page | tail -n 1)" "served by nginx"
        "#,
    },
    Recipe {
        name: "httpd",
        configure: r#"
            [ -x configure ] || ./buildconf
            ./configure --enable-modules=none --enable-mods-static="unixd authz_core dir" --with-mpm=event CFLAGS="$CFLAGS"
        "#,
        build: r#"make -j"$JOBS""#,
        check: r#"
            ./httpd -v | grep 'Server version'
            mkdir -p "$RUN/html"
            echo "served by httpd" >"$RUN/html/page"
            cat >"$RUN/httpd.conf" <<END
            ServerRoot $RUN
            ServerName localhost
            Listen 127.0.0.1:$PORT
            PidFile $RUN/pid
            ErrorLog $RUN/errors
            Mutex file:$RUN
            DocumentRoot $RUN/html
            User nobody
            Group nogroup
            <Directory $RUN/html>
                Require all granted
            </Directory>
END
            ./httpd -t -f "$RUN/httpd.conf"
            ./httpd -D FOREGROUND -f "$RUN/httpd.conf" &
            stop_at_exit $!
            await get page
            is "$(get page | tail -n 1)" "served by httpd"
        "#,
    },
    Recipe {
        name: "python",
        configure: r#"./configure --disable-test-modules --without-ensurepip OPT="$CFLAGS""#,
        build: r#"make -j"$JOBS""#,
        check: r#"
            is "$(./python -c 'import json, math, zoneinfo, subprocess; print(json.dumps([6 * 7, math.factorial(20)]))')" \
                "[42, 2432902008176640000]"
            ./python -m compileall -q -f Lib/json
        "#,
    },
    Recipe {
        name: "postgresql",
        configure: r#"./configure --without-readline --without-zlib --without-icu --prefix="$RUN/installed" CFLAGS="$CFLAGS" ||
            ./configure --without-readline --without-zlib --prefix="$RUN/installed" CFLAGS="$CFLAGS""#,
        build: r#"make -s -j"$JOBS""#,
        check: r#"
            make -s -j"$JOBS" install
            mkdir -p "$RUN/data"
            chown nobody "$RUN/data"
            chmod 700 "$RUN/data"
            # It refuses to run as root.
            nobody="setpriv --reuid=nobody --regid=nogroup --clear-groups"
            bin=$RUN/installed/bin
            cd /
            $nobody "$bin/initdb" --auth=trust --no-locale --encoding=UTF8 --username=postgres -D "$RUN/data"
            # The socket lies in the data folder, on the place.
            $nobody "$bin/postgres" -D "$RUN/data" -k "$RUN/data" -c listen_addresses= -c shared_buffers=16MB &
            stop_at_exit $!
            sql() { "$bin/psql" -X -A -t -h "$RUN/data" -U postgres -d postgres -c "$1"; }
            await sql 'select 1'
            is "$(sql 'select 6 * 7')" 42
            sql 'create table numbers as select generate_series(1, 10000) as n' >/dev/null
            is "$(sql 'select sum(n) from numbers')" 50005000
        "#,
    },
    Recipe {
        name: "ruby",
        configure: r#"
            [ -x configure ] || ./autogen.sh
            ./configure --disable-install-doc --disable-install-rdoc optflags="$CFLAGS" \
                --with-out-ext=openssl,readline,gdbm,dbm,fiddle,psych,pty,syslog,nkf,socket,win32,win32ole
        "#,
        build: r#"make -j"$JOBS" main"#,
        check: r#"
            echo 'require "json"; puts JSON.generate([6 * 7, "ab".upcase])' >"$RUN/say.rb"
            is "$(make -s runruby TESTRUN_SCRIPT="$RUN/say.rb" | tail -n 1)" '[42,"AB"]'
        "#,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_lines_are_good_for_bash() {
        for recipe in RECIPES {
            for lines in [recipe.configure, recipe.build, recipe.check] {
                let text = format!("{PRELUDE}\n{lines}");
                let said = Command::new("bash").args(["-n", "-c", &text]).output().unwrap();
                assert!(said.status.success(), "{}: {}", recipe.name, String::from_utf8_lossy(&said.stderr));
                // For an unterminated here-document, bash only prints a warning.
                assert!(said.stderr.is_empty(), "{}: {}", recipe.name, String::from_utf8_lossy(&said.stderr));
            }
        }
    }

    #[test]
    fn what_a_check_asserts_can_fail() {
        let run = |lines: &str| {
            let text = format!("{PRELUDE}\n{lines}");
            Command::new("bash").args(["-euo", "pipefail", "-c", &text]).output().unwrap().status.success()
        };
        assert!(run("is a a"));
        assert!(!run("is a b; true"));
        // Nothing listens on port 1.
        assert!(!run("PORT=1; if get page; then true; else false; fi"));
    }
}
