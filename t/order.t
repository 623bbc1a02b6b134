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

    # the last one is Tengine's own, whatever is loaded
    my @lines = grep !/the configuration file|syntax is ok|test is successful|optimal variables_hash/,
                split /\n/, $log;

    return is("@lines", '', "$name: and says nothing") if !$like;

    ok(@lines == 1 && $log =~ /\[warn\]/, "$name: one warning") or diag($log);
    like($log, $like, "$name: it names the module");
}


said('alone', undef);

# A module that needs another one to be loaded before it is there all the same.

SKIP: {
    my $ndk = has_module('ndk_http_module');

    for my $m (qw(ngx_http_lua_module ngx_http_set_misc_module)) {
        skip "no $m here", 1 unless $ndk && -e $ndk =~ s/ndk_http_module/$m/r;
        ok(has_module($m), "$m is not passed over");
    }
}

# These have filters, and ask for a place below ours, in any order; the last one
# asks for none, but has no filter either.

for my $m (qw(ngx_http_echo_module ngx_http_headers_more_filter_module
              ngx_http_js_module ngx_http_lua_module ngx_http_set_misc_module))
{
    my @m = ($m =~ /lua|set_misc/ ? 'ndk_http_module' : (), $m);

    SKIP: {
        skip "no $m for this nginx", 4 if grep !has_module($_), @m;
        said("$m $_", undef, $order{$_} => \@m) for sort keys %order;
    }
}

# This one has a filter and asks for no place, at least where its package is
# not new.

SKIP: {
    my $m = 'ngx_http_uploadprogress_module';
    my $so = has_module($m);
    skip "no $m for this nginx", 5 unless $so;

    my %in = (http => 'upload_progress p 1m;');
    my $asks = slurp($so) =~ /\0ngx_http_copy_filter_module\0/;

    # a module within nginx is there before all of the loaded ones
    said("$m before", undef, modules => [$m], %in) if length module_path();
    said("$m after", $asks ? undef
         : qr/\Q$m\E|ngx_http_idempotency_filter_module/,
         modules_after => [$m], %in);
}

# ... and this one never does.

my $scratch = File::Temp->newdir(TMPDIR => 1);

SKIP: {
    my $so = placeless();
    skip 'no tree of headers, as util/build makes it', 8 unless $so;

    said('a filter before', undef, modules => [$so]) if length module_path();
    said('a filter after', qr/ngx_http_(?:placeless|idempotency_filter)_module/,
         modules_after => [$so]);

    # where nothing is protected nothing can be wrong
    said('a filter after, and nothing protected', undef,
         modules_after => [$so], server => 'location / { }', zone => 0);
}

done_testing();


# Compiled as the module was.

sub placeless {
    my $tree = ($ENV{BUILD_DIR} // "$FindBin::Bin/../build") . '/tree';

    return undef unless -f "$tree/objs/Makefile";

    open my $f, '>', "$scratch/Makefile" or die "$scratch/Makefile: $!";
    print $f "include objs/Makefile\n",
             "placeless:\n\t\$(CC) \$(CFLAGS) -fPIC -shared \$(ALL_INCS)",
             " -o $scratch/placeless.so $FindBin::Bin/order/placeless.c\n";
    close $f;

    my $cc = $ENV{CC} // 'cc';
    my $said = `make -s -C '$tree' -f '$scratch/Makefile' CC='$cc' placeless 2>&1`;
    is($?, 0, 'a filter that asks for no place') or diag($said);

    return "$scratch/placeless.so";
}
