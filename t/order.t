#!/usr/bin/perl

# Our filter must be the first of all filters. nginx puts a dynamic module
# that asks for no place of its own behind those that are there already: if it
# has a filter, it must be loaded before us, and nginx -t says so.

use FindBin;
use lib "$FindBin::Bin/lib";
use Idempotency;

my %order = (before => 'modules', after => 'modules_after');

my %o = (server => <<'EOC');
    location / { idempotency zone=z; proxy_pass http://$TEST_NGINX_BACKEND; }
EOC

sub said {
    my ($name, $like, %more) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($ok, $log) = config_test(%o, %more);
    ok($ok, "$name: nginx -t is content") or diag($log);

    my @lines = grep !/the configuration file|syntax is ok|test is successful/,
                split /\n/, $log;

    if (!$like) {
        is_deeply(\@lines, [], "$name: and says nothing");
        return;
    }

    is(scalar(grep /\[warn\]/, @lines), 1, "$name: one warning");
    is(scalar @lines, 1, "$name: and nothing else") or diag($log);
    like($log, $like, "$name: it names the module");
}


said('alone', undef);

# These have filters, and ask for a place below ours, in any order.

for my $m (qw(ngx_http_echo_module ngx_http_headers_more_filter_module
              ngx_http_js_module))
{
    SKIP: {
        skip "no $m for this nginx", 4 unless has_module($m);
        said("$m $_", undef, $order{$_} => [$m]) for sort keys %order;
    }
}

SKIP: {
    my @m = qw(ndk_http_module ngx_http_lua_module);
    skip 'no ngx_http_lua_module for this nginx', 4
        if grep !has_module($_), @m;
    said("ngx_http_lua_module $_", undef, $order{$_} => \@m)
        for sort keys %order;
}

# These ask for none, but have no filter either.

SKIP: {
    my @m = qw(ndk_http_module ngx_http_set_misc_module);
    skip 'no ngx_http_set_misc_module for this nginx', 4
        if grep !has_module($_), @m;
    said("ngx_http_set_misc_module $_", undef, $order{$_} => \@m)
        for sort keys %order;
}

# This one has a filter and asks for no place.

SKIP: {
    my $m = 'ngx_http_uploadprogress_module';
    skip "no $m for this nginx", 8 unless has_module($m);

    my %in = (http => 'upload_progress p 1m;');

    # a module within nginx is there before all of the loaded ones
    said("$m before", undef, modules => [$m], %in) if length module_path();
    said("$m after", qr/\Q$m\E|ngx_http_idempotency_filter_module/,
         modules_after => [$m], %in);

    # where nothing is protected nothing can be wrong
    said("$m after, and nothing protected", undef, modules_after => [$m],
         server => 'location / { }', zone => 0, %in);
}

done_testing();
