//! Volumes in the servers of the tests.

use engines::{Etcd, Postgres, etcd, postgres};
use servers::{Cluster, Server};

/// Makes volumes in a PostgreSQL server.
pub trait PostgresVolumes {
    /// The address of a volume, behind this port of 127.0.0.1.
    fn address(&self, user: &str, port: u16, database: &str, volume: &str) -> postgres::Target;
    /// The address of a new volume.
    fn volume(&self) -> postgres::Target;
    /// A store of a new volume.
    fn store(&self) -> Postgres;
}

impl PostgresVolumes for Server {
    fn address(&self, user: &str, port: u16, database: &str, volume: &str) -> postgres::Target {
        let text = format!("postgres://{user}@127.0.0.1:{port}/{database}?volume={volume}&sslmode=disable");
        postgres::Target::parse(&text).unwrap()
    }

    fn volume(&self) -> postgres::Target {
        let target = self.address("covey", self.port(), "covey", &self.name());
        Postgres::create(&target, base::random::id16(), &postgres::Options::default()).unwrap();
        target
    }

    fn store(&self) -> Postgres {
        Postgres::open(&self.volume(), postgres::Options::default()).unwrap()
    }
}

/// Makes volumes in an etcd cluster.
pub trait EtcdVolumes {
    /// The address of a volume.
    fn address(&self, volume: &str) -> etcd::Target;
    /// The address of a new volume.
    fn volume(&self) -> etcd::Target;
    /// A store of a new volume.
    fn store(&self) -> Etcd;
}

impl EtcdVolumes for Cluster {
    fn address(&self, volume: &str) -> etcd::Target {
        etcd::Target::parse(&format!("etcd://{}/?volume={volume}", self.hosts())).unwrap()
    }

    fn volume(&self) -> etcd::Target {
        let target = self.address(&self.name());
        Etcd::create(&target, base::random::id16(), &etcd::Options::default()).unwrap();
        target
    }

    fn store(&self) -> Etcd {
        Etcd::open(&self.volume(), etcd::Options::default()).unwrap()
    }
}
