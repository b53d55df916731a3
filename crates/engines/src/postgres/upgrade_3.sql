-- From version 2 to 3, in one transaction. `covey_commit_1` stays: nodes that were mounted before still call it.
set local lock_timeout = '5s';
update covey_schema set version = 3 where version = 2;
