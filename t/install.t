#!/usr/bin/perl

# util/install, for an nginx whose places are all in a directory of the test: what
# it writes, that nginx runs with it, that it leaves everything as it was if nginx
# does not take it, and --uninstall. README's own lines are run by util/clean-root.

use FindBin;
use lib "$FindBin::Bin/lib";
use Commands qw(run spew);
use Idempotency;

use File::Path qw(make_path);
use File::Temp ();

my $root = "$FindBin::Bin/..";
my $tmp = File::Temp->newdir('idempotency-install-XXXXXX', TMPDIR => 1);
my $file = 'ngx_http_idempotency_module.so';

-f module_path() or plan skip_all => 'the module is in the nginx';

my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';
chomp($nginx = qx{command -v $nginx;});

my ($so, $load) = ("$tmp/modules/$file", "$tmp/enabled-modules/90-idempotency.conf");
my $port = free_port();

# An nginx with other places, and the commands around it: none of the machine's
# own services is touched, and who is not root needs no sudo here.

command(nginx => <<"END");
case " \$* " in
    *" -V "*)  echo 'configure arguments: --with-x='\\''a b'\\'' --prefix=$tmp/prefix' \\
                    '--modules-path=$tmp/modules --conf-path=$tmp/nginx.conf' \\
                    '--pid-path=$tmp/nginx.pid' >&2
               exit ;;
esac
exec $nginx -p $tmp/ -e $tmp/error.log -c $tmp/nginx.conf "\$@"
END

command(sudo => 'exec "$@"');
command(systemctl => "echo \"systemctl \$*\" >> $tmp/calls\n[ \"\$1\" = cat ] || exec service nginx restart");
command(service => <<"END");
echo "service \$*" >> $tmp/calls
if [ -s $tmp/nginx.pid ]; then
    nginx -s quit
    while [ -s $tmp/nginx.pid ]; do sleep 0.05; done
fi
nginx
END

# where there is neither systemd nor an init script, install does that by itself
my $managed = -d '/run/systemd/system' || -x '/etc/init.d/nginx';

$ENV{PATH} = "$tmp/bin:$ENV{PATH}";
$ENV{IDEMPOTENCY_MODULE} = module_path();
delete $ENV{STATIC};

make_path("$tmp/enabled-modules", "$tmp/logs");
configure('');

END { system "$tmp/bin/nginx -s stop 2>/dev/null" if -s "$tmp/nginx.pid" }


# --- nothing there, nothing running ---------------------------------------------

{
    my ($status, $out) = install('--no-restart');

    is($status, 0, 'installs') or diag($out);
    same_file($so, module_path(), '... the module, in a directory that was not there');
    is(slurp($load), "load_module $so;\n", '... and what loads it');
    ok(!-s "$tmp/nginx.pid", '--no-restart: nginx was not started');

    ($status, $out) = install('--uninstall', '--no-restart');

    is($status, 0, '--uninstall') or diag($out);
    ok(!-e $so && !-e $load, '... takes both away');

    ($status, $out) = install('--uninstall', '--no-restart');
    like($out, qr/is not installed here/, '--uninstall again: says that there is nothing');
    is($status, 0, '... which is no error');
}


# --- one that runs --------------------------------------------------------------

{
    is(system("$tmp/bin/nginx"), 0, 'nginx runs');

    my ($status, $out) = install();

    is($status, 0, 'installs beside it') or diag($out);
    like($out, qr/nginx runs with it$/m, '... says that it runs with the module');
    like(maps(), qr/\Q$file\E/, '... which is so');
    like(slurp("$tmp/calls") // '', qr/nginx/, '... restarted as the system does it')
        if $managed;

    configure("idempotency_zone zone=z:64k;\n");

    ($status, $out) = install('--uninstall');

    isnt($status, 0, '--uninstall while the configuration uses it: refuses');
    like($out, qr/unknown directive "idempotency_zone"/, "... with nginx's words");
    like($out, qr/still uses the module.*grep -rn idempotency \Q$tmp\E/s, '... and what to do');
    ok(-e $so && -e $load, '... and everything is as it was');

    configure('');

    ($status, $out) = install('--uninstall');

    is($status, 0, '--uninstall after that') or diag($out);
    ok(!-e $so && !-e $load, '... takes both away');
    unlike(maps(), qr/\Q$file\E/, '... and nginx runs without it');
}


# --- one that does not take it --------------------------------------------------

{
    spew("$tmp/bad.so", "no library\n");
    local $ENV{IDEMPOTENCY_MODULE} = "$tmp/bad.so";

    my ($status, $out) = install();

    isnt($status, 0, 'a module that nginx does not load: refuses');
    like($out, qr/\[emerg\].*dlopen/, "... with nginx's words");
    like($out, qr/everything is as it was/, '... and says so');
    ok(!-e $so && !-e $load, '... which is true');
    is((run("$tmp/bin/nginx", '-t'))[0], 0, '... and nginx would start');
}

{
    is((install('--no-restart'))[0], 0, 'a good one');

    spew("$tmp/bad.so", "no library\n");
    local $ENV{IDEMPOTENCY_MODULE} = "$tmp/bad.so";

    isnt((install('--no-restart'))[0], 0, '... and a bad one over it: refuses');
    same_file($so, module_path(), '... the good one is still there');
    is(slurp($load), "load_module $so;\n", '... and is loaded');

    configure("nonsense;\n");
    my ($status, $out) = install('--no-restart');
    isnt($status, 0, 'a configuration that was bad before: refuses');
    like($out, qr/did so before/, '... and says that');
    configure('');
}

{
    is((install('--no-restart'))[0], 0, 'a good one again');
    spew("$tmp/enabled-modules/95-another.conf", '');

    my ($status, $out) = install('--no-restart');
    like($out, qr/loaded behind it.* 95-another\.conf$/m, 'another behind it is named');
    unlink "$tmp/enabled-modules/95-another.conf";
    is((install('--uninstall', '--no-restart'))[0], 0, '--uninstall');
}

for my $how ([], ['--uninstall']) {
    spew("$tmp/enabled-modules/90-mod-http-idempotency.conf", '');
    spew($so, 'of the package');

    my ($status, $out) = install('--no-restart', @$how);

    isnt($status, 0, "@$how where the package is installed: refuses");
    like($out, qr/package libnginx-mod-http-idempotency is installed/, '... and says so');
    is(slurp($so), 'of the package', '... what it has stays');
    ok(!-e $load, '... and is not loaded a second time');

    unlink $so, "$tmp/enabled-modules/90-mod-http-idempotency.conf";
}


# --- elsewhere ------------------------------------------------------------------

{
    configure('', '');
    my ($status, $out) = install('--no-restart');

    is($status, 0, 'nginx.conf includes no directory of modules') or diag($out);
    same_file($so, module_path(), '... the module is installed');
    like($out, qr/add this line to \Q$tmp\E\/nginx\.conf.*^load_module \Q$so\E;$/ms,
         '... and the line to add is told');
    is((install('--uninstall', '--no-restart'))[0], 0, '... --uninstall');
    ok(!-e $so, '... takes it away');
}

{
    my ($status, $out) = install('--help');
    isnt($status, 0, 'an unknown option');
    like($out, qr/usage: util\/install/, '... usage');
}


done_testing();


# --- helpers --------------------------------------------------------------------

sub configure {
    my ($http, $include) = @_;

    $include //= "include $tmp/enabled-modules/*.conf;\n";
    my $user = $> == 0 ? "user root;\n" : '';

    spew("$tmp/nginx.conf", <<"END");
$include$user
events {}
http {
    client_body_temp_path $tmp/temp-1;
    proxy_temp_path $tmp/temp-2;
    fastcgi_temp_path $tmp/temp-3;
    uwsgi_temp_path $tmp/temp-4;
    scgi_temp_path $tmp/temp-5;
    access_log off;
    $http
    server { listen 127.0.0.1:$port; }
}
pid $tmp/nginx.pid;
END
}


sub install { return run('bash', "$root/util/install", @_) }


sub maps {
    my $pid = slurp("$tmp/nginx.pid");
    chomp $pid;

    return slurp("/proc/$pid/maps");
}


sub command {
    my ($name, $text) = @_;

    make_path("$tmp/bin");
    spew("$tmp/bin/$name", "#!/bin/sh\n$text\n");
    chmod 0755, "$tmp/bin/$name";
}


sub same_file { ok(slurp($_[0]) eq slurp($_[1]), $_[2]) }
