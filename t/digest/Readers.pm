package Readers;

# Those that read bodies behind us, as far as they are installed: PHP by its own
# server, Node by what it has built in, and the parsers of Express if its package
# manager brings them.

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use File::Path qw(make_path);
use HTTP::Tiny;
use IO::Socket::INET;
use IPC::Open2;
use JSON::PP;
use MIME::Base64 qw(encode_base64);

our @EXPORT_OK = qw(readers readings);

my $here = dirname(abs_path(__FILE__));
my $http = HTTP::Tiny->new(keep_alive => 0, timeout => 20);
my (@pids, $php, $to_node, $from_node, %names);

END {
    local $?;
    kill TERM => $_ for @pids;
    waitpid $_, 0 for @pids;
}


sub there { grep { -x "$_/$_[0]" } split /:/, $ENV{PATH} }

# PHP drops fields and files beyond a number of them, wherever they stand: that
# is set so high that none are

sub start_php {
    my $port = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1)->sockport;
    my $pid = fork // die "fork: $!\n";

    if ($pid == 0) {
        open STDOUT, '>', '/dev/null';
        open STDERR, '>&', \*STDOUT;
        exec 'php', '-n', (map { ('-d', $_) } 'post_max_size=64M', 'upload_max_filesize=64M',
                           'max_input_vars=100000', 'max_file_uploads=10000', 'precision=17',
                           'display_errors=0'),
             '-S', "127.0.0.1:$port", "$here/reader.php";
        exit 1;
    }

    push @pids, $pid;

    for (1 .. 200) {
        last if IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);
        select undef, undef, undef, 0.1;
    }

    $php = "http://127.0.0.1:$port";
}

sub start_node {
    my ($dir) = @_;

    if ($dir && there('npm') && there('timeout')) {
        make_path($dir);
        system 'timeout 60 npm install --prefix ' . quotemeta($dir)
               . ' --fetch-retries=0 --no-audit --no-fund qs busboy append-field'
               . ' >/dev/null 2>&1 </dev/null'
            unless -d "$dir/node_modules/append-field";
    }

    push @pids, open2($from_node, $to_node, 'node', "$here/reader.js", $dir // ());
    binmode $_ for $from_node, $to_node;
    $to_node->autoflush;
}


# the directory is for packages that are not there yet

sub readers {
    my ($dir) = @_;

    start_php() if there('php');
    start_node($dir) if there('node');

    readings('form', 'application/x-www-form-urlencoded', 'a=1');
    readings('json', 'application/json', '1');
    readings('multipart', 'multipart/form-data; boundary=x',
             qq(--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n));

    return sort keys %names;
}


# { reader => what it reads, as a digest }

sub readings {
    my ($kind, $type, $body) = @_;
    my %read;

    if ($php) {
        my $answer = $http->post("$php/$kind", { content => $body,
                                                 headers => { 'Content-Type' => $type } });

        die "PHP: $answer->{status} $answer->{content}\n" unless $answer->{success};
        $read{PHP} = $answer->{content};
    }

    if ($to_node) {
        print $to_node encode_json({ kind => $kind, type => $type,
                                     body => encode_base64($body, '') }), "\n";
        my $line = <$from_node> // die "Node has died\n";

        %read = (%read, %{decode_json($line)});
    }

    @names{keys %read} = ();

    return \%read;
}

1;
