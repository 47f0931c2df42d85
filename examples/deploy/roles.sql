-- Run once, by the superuser, in the database of the shop. The owner migrates; the workers can only read and append
-- to logs. Give both other passwords.
create role owner login password 'owner-password';
create role worker login password 'worker-password';
grant create on database shop to owner;
