#!/usr/bin/perl

# The idempotency_redis block: what may stand in it, and what one line says where
# it is wrong. docs/directives.md, "idempotency_redis".

use lib 't/lib';
use File::Temp ();
use Idempotency;

my $server = 'location / { return 200; }';
my $dir = File::Temp->newdir(TMPDIR => 1);


sub file {
    my ($name, $bytes, $mode) = @_;

    open my $f, '>', "$dir/$name" or die "$dir/$name: $!";
    print $f $bytes;
    close $f;
    chmod $mode // 0600, "$dir/$name";

    return "$dir/$name";
}


sub tested {
    my ($block, %o) = @_;

    return config_test(zone => 0, server => $server, http => "$block\n", %o);
}


sub right {
    my ($name, $block, $like) = @_;

    my ($ok, $said) = tested($block);

    ok($ok, $name) or diag($said);

    my @lines = grep /\[(?:warn|emerg|alert)\]/, split /\n/, $said;

    return is("@lines", '', '... without a word') unless $like;

    ok(@lines == 1 && $lines[0] =~ $like, '... with a warning') or diag($said);
}


# One line stops nginx, and says what, at the line that holds the mark (or is that
# of the block's end).

sub wrong {
    my ($name, $block, $why, $at) = @_;

    my ($ok, $said, $conf) = tested($block);
    my @said = $said =~ /\[emerg\] (.*)/g;
    my ($text, $line) = ($said[0] // '') =~ m{^(?:\w+: )?(.*) in ROOT/nginx\.conf:(\d+)$};

    ok(!$ok && @said == 1, "$name: refused") or diag($said);
    ok(index($text // '', $why) >= 0, "... as: $why") or diag($said);
    like((split /\n/, $conf)[($line // 1) - 1], $at // qr/WRONG|wrong/i, '... where it stands')
        or diag($said);
}


sub parameter {
    my ($text, $why) = @_;

    wrong($text, "idempotency_redis r {\n server 127.0.0.1;\n $text # wrong\n}", $why, qr/# wrong/);
}

sub whole {
    my ($text, $why) = @_;

    wrong($text, "idempotency_redis r {\n$text\n} # wrong", $why, qr/# wrong/);
}


# --- what may stand there -----------------------------------------------------

my $password = file(password => "secret\n");
my $pki = certificate();

right('least', 'idempotency_redis r { server 127.0.0.1; }');
right('a port', 'idempotency_redis r { server 127.0.0.1:6380; }');
right('a name', 'idempotency_redis r { server localhost:6380; }');
right('an address of the other kind', 'idempotency_redis r { server [::1]:6380; }');
right('a unix socket', 'idempotency_redis r { server unix:/tmp/none; }');
right('all of it', <<"EOC");
idempotency_redis all {
    server 127.0.0.1:6379;
    mode standalone;
    user me; password_file $password;
    database 15; prefix ""; connections 4;
    connect_timeout 100ms; timeout 1500ms;
    ssl on; ssl_name localhost; ssl_verify on;
    ssl_trusted_certificate $pki/cert.pem;
    ssl_certificate $pki/cert.pem; ssl_certificate_key $pki/key.pem;
    replicas 2; fsync on; lost accept;
}
EOC
right('sentinels', 'idempotency_redis r { server 127.0.0.1:1; server 127.0.0.1:2; mode sentinel; master m; }');
right('sentinels on one line', 'idempotency_redis r { server 127.0.0.1:1 127.0.0.1:2; mode sentinel; master m; }');
right('a cluster', 'idempotency_redis r { server 127.0.0.1:1; server 127.0.0.1:2; mode cluster; }');
right('two blocks', "idempotency_redis a { server 127.0.0.1; }\nidempotency_redis b { server 127.0.0.1; }");
right('another file', 'idempotency_redis r { include ' . file('inc', 'server 127.0.0.1;') . '; }');
right('a name that the resolver will look up',
      "resolver 127.0.0.1;\nidempotency_redis r { server no-such-host.invalid; }");
right('a password without an end of line',
      'idempotency_redis r { server 127.0.0.1; password_file ' . file(open => 'secret') . '; }');
right('a password that everybody may read',
      'idempotency_redis r { server 127.0.0.1; password_file ' . file(open => 'secret', 0644) . '; }',
      qr{"\Q$dir\E/open" is open to others, with the mode 0644});

my (undef, $said) = tested('idempotency_redis r { server 127.0.0.1; password_file '
                           . file(open => "secret\n", 0644) . '; }');
unlike($said, qr/secret/, '... which nobody says');


# --- what may not -------------------------------------------------------------

parameter(@$_) for
    [ 'sever 127.0.0.1;', 'unknown directive "sever"' ],
    [ 'timeout;', 'invalid number of arguments in "timeout" directive' ],
    [ 'timeout 1s 2s;', 'invalid number of arguments in "timeout" directive' ],
    [ 'timeout x;', '"timeout" directive invalid value' ],
    [ 'timeout 0;', '"timeout" directive' ],
    [ 'connect_timeout 0;', '"connect_timeout" directive' ],
    [ 'timeout 1s; timeout 1s;', '"timeout" directive is duplicate' ],
    [ 'server 127.0.0.1:0;', 'invalid port in server "127.0.0.1:0"' ],
    [ 'server 127.0.0.1:x;', 'invalid port in server "127.0.0.1:x"' ],
    [ 'server unix:;', 'in server "unix:"' ],
    [ 'server 127.0.0.1/1;', 'invalid host in server "127.0.0.1/1"' ],
    [ 'mode other;', 'invalid value "other"' ],
    [ 'mode cluster; mode cluster;', '"mode" directive is duplicate' ],
    [ 'master a; master b;', '"master" directive is duplicate' ],
    [ 'user a; user b;', '"user" directive is duplicate' ],
    [ 'database x;', '"database" directive invalid number' ],
    [ 'database -1;', '"database" directive invalid number' ],
    [ 'prefix a; prefix b;', '"prefix" directive is duplicate' ],
    [ 'connections 0;', 'value must be between 1 and 64' ],
    [ 'connections 65;', 'value must be between 1 and 64' ],
    [ 'replicas -1;', '"replicas" directive invalid number' ],
    [ 'fsync always;', 'invalid value "always" in "fsync" directive' ],
    [ 'lost perhaps;', 'invalid value "perhaps"' ],
    [ 'lost refuse; lost accept;', '"lost" directive is duplicate' ],
    [ 'ssl yes;', 'invalid value "yes" in "ssl" directive' ],
    [ 'ssl_verify 1;', 'invalid value "1" in "ssl_verify" directive' ],
    [ "password_file $dir/none;", qq{"$dir/none" failed (2: No such file or directory)} ],
    [ 'password_file ' . file(empty => '') . ';', qq{no password in the first line of "$dir/empty"} ],
    [ 'password_file ' . file(empty => "\nx\n") . ';', qq{no password in the first line of "$dir/empty"} ],
    [ "password_file $password; password_file $password;", '"password_file" directive is duplicate' ],
    [ 'timeout { }', 'unexpected "{"' ];

whole(@$_) for
    [ 'timeout 1s;', 'idempotency_redis "r" must have "server"' ],
    [ 'server 127.0.0.1; server 127.0.0.2;', 'takes one "server" with "mode standalone"' ],
    [ 'server 127.0.0.1 127.0.0.2;', 'takes one "server" with "mode standalone"' ],
    [ 'server 127.0.0.1; mode sentinel;', 'must have "master" with "mode sentinel"' ],
    [ 'server 127.0.0.1; master m;', 'takes "master" with "mode sentinel" only' ],
    [ 'server 127.0.0.1; mode cluster; master m;', 'takes "master" with "mode sentinel" only' ],
    [ 'server 127.0.0.1; mode cluster; database 1;', 'takes no "database" with "mode cluster"' ],
    [ 'server 127.0.0.1; user me;', 'must have "password_file" with "user"' ],
    [ "server 127.0.0.1; ssl on; ssl_certificate $pki/cert.pem;",
      'must have "ssl_certificate_key" with "ssl_certificate"' ],
    map [ "server 127.0.0.1; $_;", 'takes "ssl_..." with "ssl on" only' ],
        'ssl_verify off', 'ssl_verify on', 'ssl_name a', "ssl_trusted_certificate $pki/cert.pem",
        "ssl_certificate $pki/cert.pem; ssl_certificate_key $pki/key.pem", 'ssl off; ssl_verify off';

wrong('twice', "idempotency_redis r { server 127.0.0.1; }\nidempotency_redis r { # wrong\n server 127.0.0.1; }",
      'duplicate idempotency_redis "r"');
wrong('a name that nobody knows', "idempotency_redis r {\n server no-such-host.invalid; # wrong\n}",
      'host not found in server "no-such-host.invalid"');

{
    my ($ok, $said) = tested("idempotency_redis r { server 127.0.0.1; ssl on;"
                             . " ssl_trusted_certificate $dir/none; }");
    ok(!$ok && $said =~ /\[emerg\].*\Q$dir\E\/none/, 'no such certificates') or diag($said);
}

for my $in (['server', "server { listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1; %s }"],
            ['location', "server { listen 127.0.0.1:\$TEST_NGINX_RAND_PORT_1; location / { %s } }"])
{
    my ($ok, $said) = tested(sprintf $in->[1], 'idempotency_redis r { server 127.0.0.1; }');
    ok(!$ok && $said =~ /\[emerg\].*"idempotency_redis" directive is not allowed here/,
       "not in $in->[0]") or diag($said);
}

{
    my ($ok, $said) = tested("idempotency_zone zone=z:1m redis=r;\nidempotency zone=z;");
    ok(!$ok && $said =~ /\[emerg\].*idempotency_redis "r" is unknown in / && $said !~ /\[warn\]/,
       'one that is nowhere: one line says so') or diag($said);
}

# What is too large for the way there is not kept, and that can be foreseen.

for (['500ms', '4m', 0], ['500ms', '6m', 1], ['20ms', '', 1], ['1s', '', 0]) {
    my ($timeout, $size, $warns) = @$_;
    my $zone = "idempotency_redis r { server 127.0.0.1; timeout $timeout; }\nidempotency_zone zone=z:1m redis=r;\n"
               . ($size ? "idempotency_max_response $size;\n" : '')
               . 'idempotency zone=z; idempotency_quota 1;';

    right("$timeout and $size", $zone, $warns && qr/\[warn\].*zone "z": .*takes longer at 10 MB\/s .*, \d+ ms/);
}

done_testing();
