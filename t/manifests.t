#!/usr/bin/perl

# Files that others' programs read: Kubernetes' manifests, which belong together, their
# configuration, and what GitHub reads.
#
# KUBERNETES_SCHEMAS is a directory with Kubernetes' OpenAPI (swagger.json) and, as
# *.yaml, definitions of custom resources; without it no manifest is compared with them.

use lib 't/lib';
use Idempotency;
use JSON::PP ();
use Pages;

eval { require YAML::XS } or plan skip_all => 'no YAML::XS here';

my %loaded = map {
    my $file = s{^\Q$Pages::root\E/}{}r;
    ($file => [eval { YAML::XS::Load(text($file)) }]);
} glob "$Pages::root/{.github/workflows,.github/ISSUE_TEMPLATE,examples/kubernetes,examples/observability}/*.y{a,}ml";

is(join(' ', grep { !@{$loaded{$_}} } sort keys %loaded), '', 'each is YAML');


# --- Kubernetes -------------------------------------------------------------------

my $dir = 'examples/kubernetes';
my $customized = $loaded{"$dir/kustomization.yaml"}[0];
my @all = map { @{$loaded{"$dir/$_"}} } @{$customized->{resources}};
my %kind;

push @{$kind{$_->{kind}}}, $_ for @all;

for my $set (@{$kind{Deployment}}, @{$kind{StatefulSet}}) {
    my ($name, $spec) = ($set->{metadata}{name}, $set->{spec});
    my $pod = $spec->{template};
    my ($container) = @{$pod->{spec}{containers}};
    my %port = map { $_->{name} => $_->{containerPort} } @{$container->{ports}};

    is_deeply($pod->{metadata}{labels}, $spec->{selector}{matchLabels}, "$name: its pods are its own");

    my ($service) = grep { $_->{metadata}{name} eq $name } @{$kind{Service}};

    is_deeply($service->{spec}{selector}, $spec->{selector}{matchLabels}, '... its Service has them');
    ok($port{$service->{spec}{ports}[0]{targetPort}}, '... at a port that they have');

    my $probe = $container->{readinessProbe};
    ok($probe->{exec} || $port{$probe->{httpGet}{port}}, '... and so are they asked');

    my %volume = map { $_->{name} // $_->{metadata}{name} => 1 }
                 @{$pod->{spec}{volumes} // []}, @{$spec->{volumeClaimTemplates} // []};
    is(join(' ', grep { !$volume{$_} } map { $_->{name} } @{$container->{volumeMounts}}), '',
       '... what they mount is there');
}

schemas();

my ($gateway) = @{$kind{Deployment}};
my $conf = text("$dir/$customized->{configMapGenerator}[0]{files}[0]");

is($gateway->{spec}{template}{spec}{volumes}[0]{configMap}{name},
   $customized->{configMapGenerator}[0]{name}, 'the configuration is what they mount');
is($gateway->{spec}{template}{spec}{containers}[0]{image}, $customized->{images}[0]{name},
   'the image has its tag');
is($loaded{"$dir/route.yaml"}[0]{spec}{rules}[0]{backendRefs}[0]{name}, $gateway->{metadata}{name},
   'the route leads to them');

for my $port ($conf =~ /listen (\d+)/g) {
    ok(grep({ $_->{containerPort} == $port } @{$gateway->{spec}{template}{spec}{containers}[0]{ports}}),
       "they listen on $port");
}

my ($ok, $said) = config_test(zone => 0, http => place($conf, 'redis:6379' => '127.0.0.1:6379',
                                                       'app:8080' => '127.0.0.1:8080'));
ok($ok, 'nginx takes the configuration') or diag($said);


# --- GitHub -----------------------------------------------------------------------

my $ci = $loaded{'.github/workflows/ci.yml'}[0]{jobs};

is(join(' ', sort keys %$ci), 'codeql quick weekly whole', 'what a CI runs');

for my $line (map { $_->{run} // () } map { @{$_->{steps}} } map { $ci->{$_} } sort keys %$ci) {
    ok(-x "$Pages::root/$1", "... $1 is there") if $line =~ m{^(util/\w+)};
}

ok(-x "$Pages::root/" . s/ .*//r, "... $_ is there")
    for @{$ci->{weekly}{strategy}{matrix}{command}};

for my $form (map { $loaded{".github/ISSUE_TEMPLATE/$_.yml"}[0] } qw(fault wish)) {
    ok($form->{name} && $form->{description}, "the form \"$form->{name}\"");
    is(join(' ', grep { !$_->{attributes}{label} && $_->{type} ne 'markdown' } @{$form->{body}}), '',
       '... each field says what it is');
}



# --- OpenAPI ----------------------------------------------------------------------

{
    my $parts = YAML::XS::Load(text('docs/openapi.yaml'))->{components};
    my $problem = $parts->{schemas}{IdempotencyProblem};
    my @names = section('docs/refusals.md', 'Refusals') =~ /^\| `(\w+)` \| \d/mg;

    is_deeply([sort @{$problem->{properties}{type}{enum}}], [map { "urn:idempotency:$_" } sort @names],
              'the fragment for OpenAPI names all refusals');

    my $n = nginx(server => 'idempotency zone=z; location / { proxy_pass http://$TEST_NGINX_BACKEND; }');

    $n->post('/x', key => 'o', body => 'a');
    my $r = $n->post('/x', key => 'o', body => 'b');

    is_deeply([sort $r->{body} =~ /"(\w+)":/g], [sort @{$problem->{required}}], '... and what stands in one');
    is($n->post('/x', key => 'o', body => 'a')->header('Idempotent-Replayed'),
       $parts->{headers}{IdempotentReplayed}{schema}{const}, '... and the header of a replay');
    like(text('docs/openapi.yaml'), qr/maxLength: 256$/m, '... and the length of a key');
}

done_testing();


# --- schemas ----------------------------------------------------------------------

# Each manifest by the schema of its kind; what the schema does not name is wrong.

sub schemas {
    my $schemas = $ENV{KUBERNETES_SCHEMAS} or return;
    my $slurp = sub { open my $f, '<', $_[0] or die "$_[0]: $!"; local $/; readline $f };
    my $swagger = JSON::PP->new->utf8->decode($slurp->("$schemas/swagger.json"));
    my %schema;

    for my $known (values %{$swagger->{definitions}}) {
        $schema{join '/', grep { length } @$_{qw(group version kind)}} = $known
            for @{$known->{'x-kubernetes-group-version-kind'} // []};
    }

    for my $custom (map { YAML::XS::Load($slurp->($_)) } glob "$schemas/*.yaml") {
        my $spec = $custom->{spec};

        $schema{"$spec->{group}/$_->{name}/$spec->{names}{kind}"} = $_->{schema}{openAPIV3Schema}
            for @{$spec->{versions}};
    }

    for (@all, @{$loaded{"$dir/route.yaml"}}) {
        my $name = "$_->{apiVersion}/$_->{kind}";

        is(join(', ', $schema{$name} ? wrong($_, $schema{$name}, '', $swagger) : 'unknown'), '',
           "$name $_->{metadata}{name}: as its schema says");
    }
}


# wrong(VALUE, SCHEMA, PATH, SWAGGER): where, and why

sub wrong {
    my ($value, $schema, $path, $swagger) = @_;

    $schema = $swagger->{definitions}{$1} while ($schema->{'$ref'} // '') =~ m{([^/]+)$};

    my $type = $schema->{type} // 'object';
    my $known = $schema->{properties} // {};
    my $other = $schema->{additionalProperties};
    my $any = $schema->{'x-kubernetes-preserve-unknown-fields'}
              || !%$known && !$other && $type eq 'object' || $schema->{'x-kubernetes-int-or-string'}
              || ($schema->{format} // '') eq 'int-or-string';

    return if $any;

    if ($type eq 'array') {
        return "$path is no list" if ref $value ne 'ARRAY';
        return map { wrong($value->[$_], $schema->{items}, "$path\[$_]", $swagger) } 0 .. $#$value;
    }

    if ($type eq 'object') {
        return "$path is no object" if ref $value ne 'HASH';

        return map({ "$path.$_ is missing" } grep { !exists $value->{$_} } @{$schema->{required} // []}),
               map {
                   my $of = $known->{$_} // (ref $other ? $other : undef);
                   $of ? wrong($value->{$_}, $of, "$path.$_", $swagger) : $other ? () : "$path.$_ is unknown";
               } sort keys %$value;
    }

    return "$path is no $type" if ref $value || !defined $value
                                  || $type eq 'integer' && $value !~ /^-?\d+$/
                                  || $type eq 'boolean' && $value !~ /^(?:1|)$/;
    return "$path is none of @{$schema->{enum}}" if $schema->{enum} && !grep { $_ eq $value } @{$schema->{enum}};
    return "$path is not /$schema->{pattern}/" if $schema->{pattern} && $value !~ /$schema->{pattern}/;
    return;
}
