#!/usr/bin/perl

# docs/directives.md, idempotency_identity: who asks, as the configuration and
# the names of real headers tell.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use Idempotency;


# nginx -t warns where who asks is the same for all, or a guess

for ([ 'idempotency_identity nobody;', qr/"idempotency_identity" is the constant "nobody"/ ],
     [ 'idempotency_missing_key content;', qr/"idempotency_missing_key content" without an "idempotency_identity"/ ],
     [ "idempotency_identity '';\nidempotency_missing_key content;", qr/"idempotency_missing_key content" without/ ])
{
    my ($line, $why) = @$_;

    for my $server ("location / { idempotency zone=z;\n$line\n}",
                    "location / { idempotency zone=z; } location /x { idempotency zone=z; }\n$line")
    {
        my ($ok, $said, $file) = config_test(server => $server);
        my @warned = $said =~ /\[warn\] (.*)/g;

        ok($ok, "$line: nginx -t is content");
        is(@warned, 1, '... and warns once') or diag($said);
        like($warned[0], qr/^$why.* in ROOT\/nginx\.conf:\d+$/, '... of that');

        my ($at) = $warned[0] =~ /:(\d+)$/;
        my @lines = split /\n/, $file;
        like($lines[$at - 1], qr/^idempotency_(?:identity nobody|missing_key content);$/, '... where it stands');
    }
}

for ('location / { idempotency zone=z; idempotency_missing_key form; }',
     'location / { idempotency zone=z; idempotency_identity a$cookie_a; } idempotency_missing_key content;',
     'location / { idempotency off; } idempotency_missing_key content;',
     q{location / { idempotency zone=z; idempotency_identity ''; }})
{
    my ($ok, $said) = config_test(server => $_);

    ok($ok && $said !~ /\[warn\]/, "$_: nothing to warn of") or diag($said);
}


# names of headers: those of the unit test, some of them on their way through
# nginx (a name has another value in the second request)

my ($counts, $others) = slurp("$FindBin::Bin/unit/credential_test.c")
                        =~ /static char  \*(?:credentials|others)\[\] = \{\n(.*?)    NULL\n/gs;

my $n = nginx(server => <<'EOC');
    underscores_in_headers on;
    ignore_invalid_headers off;
    location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

my $unfit = qr/^(?:Host|Connection|Keep-Alive|Upgrade|TE|Trailer|Transfer-Encoding|Expect|Range|Via|Cookie|Accept
                  |Content-Type|Content-Length|Content-Encoding|Depth|Destination|Overwrite|If-.*|User-Agent
                  |Idempotency[-_]Key)$/x;

for ([ $counts, 409, 'counts' ], [ $others, 200, 'counts for nothing' ]) {
    my ($names, $status, $what) = @$_;
    my @names = grep { !/$unfit/ } $names =~ /"([^"]+)"/g;

    cmp_ok(scalar @names, '>', 150, "names of which each $what");

    my @wrong = grep {
        my $name = $_;
        my @r = map { $n->post('/x', key => "name-$name", headers => ["$name: $_"]) } 1, 2;

        $r[0]{status} != 200 || $r[1]{status} != $status
    } @names;

    is("@wrong", '', "$what, through nginx");
}

ok($n->stop, 'the log is clean');

done_testing();
