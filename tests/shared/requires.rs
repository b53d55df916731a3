//! Ends a test early that has no PostgreSQL, for the programs whose `rig` has the `Server`.

/// Ends the test early if there is no PostgreSQL.
#[macro_export]
macro_rules! requires_server {
    () => {
        match $crate::rig::Server::start() {
            Some(server) => server,
            None => {
                covey_tests::say(format_args!("skipped: lacks PostgreSQL's server"));
                return;
            }
        }
    };
}
